UPDATE rollouts SET status = 'void', void_class = $1, void_reason = $2, ended_at = $3, ended = $4, node_id = $5
WHERE number = $6 AND status = 'selected'
