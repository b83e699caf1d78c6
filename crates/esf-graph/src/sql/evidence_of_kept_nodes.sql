SELECT v.evidence FROM evaluations v JOIN nodes n ON n.node_id = v.node_id
WHERE n.status <> 'pruned' AND v.evidence <> '[]'
