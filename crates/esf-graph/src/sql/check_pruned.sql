SELECT n.node_id FROM nodes n
WHERE n.status <> 'pruned'
  AND EXISTS (SELECT 1 FROM node_parents p JOIN nodes m ON m.node_id = p.parent_id
              WHERE p.node_id = n.node_id AND m.status = 'pruned')
