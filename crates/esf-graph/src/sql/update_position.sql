UPDATE positions
SET to_move = $1, terminal = $2, expansion = $3, edge_count = $4, place = $5, value_count = $6, value = $7, visits = $8,
    mean = $9, proven = $10, evaluation_id = $11
WHERE number = $12
