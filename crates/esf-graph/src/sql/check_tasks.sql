SELECT t.task_id FROM tasks t
LEFT JOIN nodes f ON f.node_id = t.first_node_id
LEFT JOIN nodes i ON i.node_id = t.integrated_as
LEFT JOIN queue_entries q ON q.task_id = t.task_id AND q.status = 'queued'
WHERE f.group_id IS NOT t.group_id
   OR (t.integrated_as IS NOT NULL AND (i.group_id IS NOT t.group_id OR i.root_id IS NULL))
   OR (t.status = 'submitted') <> (q.entry_id IS NOT NULL)
