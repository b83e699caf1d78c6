UPDATE rollouts
SET status = 'accepted', outcome_digest = $1, value = $2, reached = $3, node_id = $4, evaluation_id = $5, cost = $6,
    ended_at = $7, ended = $8
WHERE number = $9 AND status = 'selected'
