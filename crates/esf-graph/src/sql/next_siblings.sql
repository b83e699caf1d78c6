SELECT sibling_id FROM siblings WHERE run = $1 AND status = 'waiting' ORDER BY opened DESC, number LIMIT $2
