SELECT sibling_id FROM siblings WHERE sibling_id >= $1 AND sibling_id <= $2 ORDER BY sibling_id LIMIT 21
