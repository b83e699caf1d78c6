SELECT e.exec_id FROM execs e JOIN attempts a ON a.attempt_id = e.attempt_id
WHERE e.status = 'running' AND a.status NOT IN ('active', 'quiescing')
