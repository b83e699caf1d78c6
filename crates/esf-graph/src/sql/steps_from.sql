SELECT ordinal, node_before, node_after, action, observation, reward, elapsed_ms, attempt_id, exec_ids, policy_version, arrays
FROM steps WHERE trial = $1 AND ordinal >= $2 ORDER BY ordinal LIMIT $3
