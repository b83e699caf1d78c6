SELECT p.number, p.depth, p.to_move, p.terminal, p.expansion, p.asking, p.value_count, p.value, p.visits, p.mean, p.proven,
       p.search, p.entry, p.entries, p.level, p.edge_count, p.place, p.pruned, p.node_id, p.state_key, p.evaluation_id, n.root_id, n.status
FROM positions p LEFT JOIN nodes n ON n.node_id = p.node_id WHERE p.number = $1
