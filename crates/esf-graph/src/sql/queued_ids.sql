SELECT attempt_id FROM attempts WHERE status = 'queued' ORDER BY number
