//! The SQL of the graph: one file for each statement, in the subset that PostgreSQL speaks as well
//! (`$1`, `ON CONFLICT`, `RETURNING`). Invariant: placeholders appear first in ascending order, since
//! SQLite numbers them as they appear.

macro_rules! statements {
    ($($name:ident = $file:literal;)*) => {
        $(pub(crate) const $name: &str = include_str!(concat!("sql/", $file, ".sql"));)*

        /// Every statement with its file's name, for the tests.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

statements! {
    ALL_ATTEMPTS = "all_attempts";
    ALL_ENVIRONMENTS = "all_environments";
    ALL_GROUPS = "all_groups";
    ALL_POLICIES = "all_policies";
    ALL_ROOTS = "all_roots";
    ALL_STATES = "all_states";
    ATTEMPT_BY_ID = "attempt_by_id";
    ATTEMPTS_OF_GROUP = "attempts_of_group";
    ATTEMPTS_OF_NODE = "attempts_of_node";
    ATTEMPTS_WITH_DELTA = "attempts_with_delta";
    CANDIDATE = "candidate";
    CHECK_BASES = "check_bases";
    CHECK_CANONICAL = "check_canonical";
    CHECK_EVENTS = "check_events";
    CHECK_EXECS = "check_execs";
    CHECK_LEASES = "check_leases";
    CHECK_LIVE = "check_live";
    CHECK_PARENTS = "check_parents";
    CHECK_PRODUCERS = "check_producers";
    CHECK_PRUNED = "check_pruned";
    CHECK_ROOTS = "check_roots";
    CHECK_TAGS = "check_tags";
    CHILD_IDS = "child_ids";
    CHILDREN_OF_NODE = "children_of_node";
    COUNT_TAGS = "count_tags";
    DELETE_TAG = "delete_tag";
    EVALUATION_BY_ID = "evaluation_by_id";
    EVALUATIONS_OF_NODE = "evaluations_of_node";
    EVENTS_FROM = "events_from";
    EVIDENCE_OF_KEPT_NODES = "evidence_of_kept_nodes";
    EXEC_BY_ID = "exec_by_id";
    EXECS_OF_ATTEMPT = "execs_of_attempt";
    GROUP_BY_ID = "group_by_id";
    GROUP_BY_NAME = "group_by_name";
    HELD_LEASES = "held_leases";
    IDS_OF_ATTEMPTS = "ids_of_attempts";
    IDS_OF_EVALUATIONS = "ids_of_evaluations";
    IDS_OF_EXECS = "ids_of_execs";
    IDS_OF_GROUPS = "ids_of_groups";
    IDS_OF_LEASES = "ids_of_leases";
    IDS_OF_NODES = "ids_of_nodes";
    IDS_OF_ROOTS = "ids_of_roots";
    INSERT_ATTEMPT = "insert_attempt";
    INSERT_ENVIRONMENT = "insert_environment";
    INSERT_EVALUATION = "insert_evaluation";
    INSERT_EVENT = "insert_event";
    INSERT_EXEC = "insert_exec";
    INSERT_GROUP = "insert_group";
    INSERT_LEASE = "insert_lease";
    INSERT_MERGE_PARENT = "insert_merge_parent";
    INSERT_NODE = "insert_node";
    INSERT_POLICY = "insert_policy";
    INSERT_REQUEST = "insert_request";
    INSERT_ROOT = "insert_root";
    INSERT_STATE = "insert_state";
    INSERT_STORE = "insert_store";
    INSERT_TAG = "insert_tag";
    KEPT_ATTEMPTS_OF_NODE = "kept_attempts_of_node";
    LAST_EVENT = "last_event";
    LEASE_BY_ID = "lease_by_id";
    LEASES_OF_ATTEMPT = "leases_of_attempt";
    LEASES_OF_NODE = "leases_of_node";
    LINEAGE_OF_NODE = "lineage_of_node";
    LIVE_ATTEMPTS = "live_attempts";
    LIVE_COUNT = "live_count";
    LIVE_ENVIRONMENTS = "live_environments";
    LIVE_IN_GROUP = "live_in_group";
    LIVE_ROOTS = "live_roots";
    MERGE_PARENTS = "merge_parents";
    MOVE_CANONICAL = "move_canonical";
    NAMING_ENVIRONMENTS = "naming_environments";
    NODE_BY_ID = "node_by_id";
    NODE_OF_TAG = "node_of_tag";
    NODES_OF_GROUP = "nodes_of_group";
    NODES_OF_ROOT = "nodes_of_root";
    OPEN_ATTEMPT_OF_DRAFT = "open_attempt_of_draft";
    OPEN_ATTEMPT_OF_NODE = "open_attempt_of_node";
    PINS_OF_ROOT = "pins_of_root";
    POLICY_OF_GROUP = "policy_of_group";
    PRUNE_NODE = "prune_node";
    QUEUED_ATTEMPTS = "queued_attempts";
    QUEUED_IN_GROUP = "queued_in_group";
    REQUEST_BY_KEY = "request_by_key";
    ROOT_KNOWN = "root_known";
    RUNNING_EXECS = "running_execs";
    STATE_KNOWN = "state_known";
    STORE_ID = "store_id";
    TAGS_OF_NODE = "tags_of_node";
    UPDATE_ATTEMPT = "update_attempt";
    UPDATE_EXEC = "update_exec";
    UPDATE_LEASE = "update_lease";
    UPDATE_NODE = "update_node";
}

#[cfg(test)]
mod tests {
    use super::ALL;

    fn placeholders(sql: &str) -> Vec<usize> {
        sql.split('$')
            .skip(1)
            .map(|rest| {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().expect("a number follows `$`")
            })
            .collect()
    }

    #[test]
    fn every_statement_suits_the_schema_and_both_databases() {
        let db = rusqlite::Connection::open_in_memory().expect("memory");
        crate::schema::migrate(&db).expect("schema");
        for (name, sql) in ALL {
            db.prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut highest = 0;
            for number in placeholders(sql) {
                assert!(number <= highest + 1, "{name}: ${number} before ${}", highest + 1);
                highest = highest.max(number);
            }
            for word in ["?", "INSERT OR", "REPLACE", "rowid", "ifnull", "IFNULL", "`", "\""] {
                assert!(!sql.contains(word), "{name} has {word:?}, which PostgreSQL does not speak");
            }
        }
    }
}
