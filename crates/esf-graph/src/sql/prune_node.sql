UPDATE nodes SET status = 'pruned', pruned_at = $1 WHERE node_id = $2 AND status = $3
