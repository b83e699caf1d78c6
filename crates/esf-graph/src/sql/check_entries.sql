SELECT q.entry_id FROM queue_entries q
LEFT JOIN tasks t ON t.task_id = q.task_id
LEFT JOIN nodes n ON n.node_id = q.node_id
WHERE t.group_id IS NOT q.group_id OR n.group_id IS NOT q.group_id
   OR (q.status = 'queued' AND n.status <> 'sealed')
   OR (q.status = 'integrated' AND t.status <> 'integrated')
