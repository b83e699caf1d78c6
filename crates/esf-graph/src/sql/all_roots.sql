SELECT root_id, attrs_id, registered_at, registered_by FROM roots ORDER BY registered_at, root_id
