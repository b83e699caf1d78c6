UPDATE rollouts SET expires_at = $1 WHERE number = $2 AND status = 'selected'
