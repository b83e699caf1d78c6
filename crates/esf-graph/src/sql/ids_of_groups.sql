SELECT group_id FROM groups WHERE group_id >= $1 AND group_id <= $2 ORDER BY group_id LIMIT 21
