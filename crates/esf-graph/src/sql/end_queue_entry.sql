UPDATE queue_entries SET status = $1, outcome = $2, goes_on_at = $3, ended_at = $4
WHERE entry_id = $5 AND status = 'queued'
