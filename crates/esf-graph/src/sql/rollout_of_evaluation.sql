SELECT rollout_id FROM rollouts
WHERE evaluation_id = $1 AND reached = $2 AND status = 'accepted' ORDER BY number LIMIT 1
