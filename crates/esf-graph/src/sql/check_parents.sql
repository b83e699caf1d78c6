SELECT n.node_id FROM nodes n
WHERE n.parent_count <> (SELECT count(*) FROM node_parents p WHERE p.node_id = n.node_id)
   OR EXISTS (SELECT 1 FROM node_parents p JOIN nodes m ON m.node_id = p.parent_id
              WHERE p.node_id = n.node_id AND (m.depth >= n.depth OR m.group_id <> n.group_id))
