SELECT entry_id FROM queue_entries WHERE entry_id >= $1 AND entry_id <= $2 ORDER BY entry_id LIMIT 21
