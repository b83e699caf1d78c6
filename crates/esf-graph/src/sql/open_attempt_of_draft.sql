SELECT attempt_id, lease_id FROM attempts
WHERE node_id = $1 AND status IN ('queued', 'active', 'quiescing') AND purpose <> 'evaluate'
