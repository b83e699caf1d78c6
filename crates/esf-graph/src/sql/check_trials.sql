SELECT s.sibling_id FROM trials t JOIN siblings s ON s.number = t.sibling
WHERE t.run = $1 AND (
    (SELECT count(*) FROM steps x WHERE x.trial = t.number) <> t.next_step - t.first_step
    OR (SELECT coalesce(max(x.ordinal) + 1, t.first_step) FROM steps x WHERE x.trial = t.number) <> t.next_step
    OR EXISTS (SELECT 1 FROM steps x JOIN steps y ON y.trial = x.trial AND y.ordinal = x.ordinal + 1
               WHERE x.trial = t.number AND y.node_before <> coalesce(x.node_after, x.node_before))
    OR t.node_id <> coalesce((SELECT coalesce(x.node_after, x.node_before) FROM steps x
                              WHERE x.trial = t.number AND x.ordinal = t.next_step - 1), t.node_id))
ORDER BY t.number LIMIT 100
