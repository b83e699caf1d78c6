-- Tasks and the merge queue. Every table and column is described in docs/schema.md.

CREATE TABLE tasks (
    number          INTEGER PRIMARY KEY,
    task_id         BLOB NOT NULL UNIQUE CHECK (length(task_id) = 16),
    group_id        BLOB NOT NULL REFERENCES groups (group_id),
    name            TEXT NOT NULL,
    goal            TEXT NOT NULL,
    base_node_id    BLOB NOT NULL REFERENCES nodes (node_id),
    base_generation INTEGER NOT NULL,
    first_node_id   BLOB NOT NULL UNIQUE REFERENCES nodes (node_id) DEFERRABLE INITIALLY DEFERRED,
    status          TEXT NOT NULL CHECK (status IN ('open', 'submitted', 'integrated', 'closed')),
    integrated_as   BLOB REFERENCES nodes (node_id),
    reason          TEXT,
    created_at      INTEGER NOT NULL,
    created_by      TEXT NOT NULL,
    ended_at        INTEGER,
    trace_id        TEXT NOT NULL,
    UNIQUE (group_id, name),
    CHECK ((status = 'integrated') = (integrated_as IS NOT NULL)),
    CHECK ((status IN ('integrated', 'closed')) = (ended_at IS NOT NULL))
) STRICT;
CREATE INDEX tasks_integrated ON tasks (integrated_as) WHERE integrated_as IS NOT NULL;

CREATE TABLE queue_entries (
    number        INTEGER PRIMARY KEY,
    entry_id      BLOB NOT NULL UNIQUE CHECK (length(entry_id) = 16),
    group_id      BLOB NOT NULL REFERENCES groups (group_id),
    task_id       BLOB NOT NULL REFERENCES tasks (task_id),
    node_id       BLOB NOT NULL REFERENCES nodes (node_id),
    priority      INTEGER NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('queued', 'integrated', 'refused', 'withdrawn')),
    outcome       TEXT, -- a JSON object
    goes_on_at BLOB REFERENCES nodes (node_id), -- at which work on a refused entry goes on
    created_at    INTEGER NOT NULL,
    created_by    TEXT NOT NULL,
    ended_at      INTEGER,
    trace_id      TEXT NOT NULL,
    CHECK ((status = 'queued') = (ended_at IS NULL)),
    CHECK ((status IN ('integrated', 'refused')) = (outcome IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX queue_waiting_of_task ON queue_entries (task_id) WHERE status = 'queued';
CREATE INDEX queue_waiting ON queue_entries (group_id, priority DESC, number) WHERE status = 'queued';
CREATE INDEX queue_waiting_of_node ON queue_entries (node_id) WHERE status = 'queued';
CREATE INDEX queue_of_task ON queue_entries (task_id, number);
CREATE INDEX queue_of_group ON queue_entries (group_id, number);
