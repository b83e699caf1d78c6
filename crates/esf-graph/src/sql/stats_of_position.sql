SELECT p.number, p.depth, p.to_move, p.terminal, p.expansion, p.asking, p.value_count, p.value, p.visits, p.mean, p.proven
FROM positions p WHERE p.number = $1
