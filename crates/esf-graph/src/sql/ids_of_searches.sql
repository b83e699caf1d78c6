SELECT search_id FROM searches WHERE search_id >= $1 AND search_id <= $2 ORDER BY search_id LIMIT 21
