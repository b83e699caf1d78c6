SELECT entry_id FROM queue_entries WHERE node_id = $1 AND status = 'queued' LIMIT 1
