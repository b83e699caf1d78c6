SELECT root_id, attrs_id FROM roots WHERE root_id = $1 ORDER BY registered_at, attrs_id
