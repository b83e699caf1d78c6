UPDATE rollouts SET status = 'void', void_class = $1, void_reason = $2, ended_at = $3, ended = $4
WHERE number = $5 AND status = 'selected'
