INSERT INTO roots (root_id, attrs_id, registered_at, registered_by, trace_id)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (root_id, attrs_id) DO NOTHING
