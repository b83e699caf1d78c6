SELECT 1 FROM roots WHERE root_id = $1 AND attrs_id = $2
