SELECT evaluation_id, group_id, node_id, attempt_id, run_attempt_id, evaluator, evaluator_version,
       evaluator_digest, class, verdict, reward, metrics, evidence, failure, counts, statement_digest,
       created_at, created_by, trace_id
FROM evaluations
WHERE node_id = $1
ORDER BY number
