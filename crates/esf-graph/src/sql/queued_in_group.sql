SELECT count(*) FROM attempts WHERE group_id = $1 AND status = 'queued'
