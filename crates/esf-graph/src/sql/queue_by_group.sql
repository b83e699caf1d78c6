SELECT group_id, count(*), min(queued_at) FROM attempts WHERE status = 'queued' GROUP BY group_id
