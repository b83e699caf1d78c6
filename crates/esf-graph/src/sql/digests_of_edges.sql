SELECT action_digest FROM actions WHERE edge >= $1 AND edge <= $2 ORDER BY edge
