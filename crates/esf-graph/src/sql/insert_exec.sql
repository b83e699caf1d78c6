INSERT INTO execs (exec_id, attempt_id, status, argv, work_dir, run_as, timeout_ms, outcome, exit_code,
                   started_at, ended_at, created_by, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
