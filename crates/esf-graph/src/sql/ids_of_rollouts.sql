SELECT rollout_id FROM rollouts WHERE rollout_id >= $1 AND rollout_id <= $2 ORDER BY rollout_id LIMIT 21
