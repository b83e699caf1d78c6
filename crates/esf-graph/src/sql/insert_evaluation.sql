INSERT INTO evaluations (evaluation_id, group_id, node_id, attempt_id, run_attempt_id, evaluator,
                         evaluator_version, evaluator_digest, class, verdict, reward, metrics, evidence,
                         failure, counts, statement_digest, created_at, created_by, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
