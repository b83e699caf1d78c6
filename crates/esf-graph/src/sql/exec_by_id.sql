SELECT exec_id, attempt_id, status, argv, work_dir, run_as, timeout_ms, outcome, started_at, ended_at,
       created_by, trace_id
FROM execs
WHERE exec_id = $1
