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
    ACCEPT_ROLLOUT = "accept_rollout";
    ACTION_OF_EDGE = "action_of_edge";
    ALL_ATTEMPTS = "all_attempts";
    ALL_ENVIRONMENTS = "all_environments";
    ALL_GROUPS = "all_groups";
    ALL_POLICIES = "all_policies";
    ALL_ROOTS = "all_roots";
    ALL_SEARCHES = "all_searches";
    ALL_STATES = "all_states";
    ASK_POSITION = "ask_position";
    ATTEMPT_BY_ID = "attempt_by_id";
    ATTEMPTS_OF_GROUP = "attempts_of_group";
    ATTEMPTS_OF_NODE = "attempts_of_node";
    ATTEMPTS_WITH_DELTA = "attempts_with_delta";
    CANDIDATE = "candidate";
    CHECK_BASES = "check_bases";
    CHECK_CANONICAL = "check_canonical";
    CHECK_ENDED = "check_ended";
    CHECK_EVENTS = "check_events";
    CHECK_EXECS = "check_execs";
    CHECK_LEASES = "check_leases";
    CHECK_LIVE = "check_live";
    CHECK_PARENTS = "check_parents";
    CHECK_PRODUCERS = "check_producers";
    CHECK_PRUNED = "check_pruned";
    CHECK_ROLLOUTS = "check_rollouts";
    CHECK_ROOTS = "check_roots";
    CHECK_TAGS = "check_tags";
    CHECK_VALUES = "check_values";
    CHILD_IDS = "child_ids";
    CHILDREN_OF_NODE = "children_of_node";
    CHILDREN_OF_POSITION = "children_of_position";
    CONFIGURE_SEARCH = "configure_search";
    COUNT_ENTRY = "count_entry";
    COUNT_TAGS = "count_tags";
    DELETE_TAG = "delete_tag";
    DIGESTS_OF_EDGES = "digests_of_edges";
    EDGES_FROM = "edges_from";
    ENTRIES_OF_POSITION = "entries_of_position";
    ENTRY_OF_POSITION = "entry_of_position";
    EVALUATION_BY_ID = "evaluation_by_id";
    EVALUATIONS_OF_NODE = "evaluations_of_node";
    EVENTS_FROM = "events_from";
    EVIDENCE_OF_KEPT_NODES = "evidence_of_kept_nodes";
    EXEC_BY_ID = "exec_by_id";
    EXECS_OF_ATTEMPT = "execs_of_attempt";
    EXTEND_ROLLOUT = "extend_rollout";
    FAIL_EDGE = "fail_edge";
    GROUP_BY_ID = "group_by_id";
    GROUP_BY_NAME = "group_by_name";
    HELD_LEASES = "held_leases";
    HELD_ROLLOUTS = "held_rollouts";
    HOLD_EDGE = "hold_edge";
    IDS_OF_ATTEMPTS = "ids_of_attempts";
    IDS_OF_EVALUATIONS = "ids_of_evaluations";
    IDS_OF_EXECS = "ids_of_execs";
    IDS_OF_GROUPS = "ids_of_groups";
    IDS_OF_LEASES = "ids_of_leases";
    IDS_OF_NODES = "ids_of_nodes";
    IDS_OF_ROLLOUTS = "ids_of_rollouts";
    IDS_OF_ROOTS = "ids_of_roots";
    IDS_OF_SEARCHES = "ids_of_searches";
    INSERT_ACTION = "insert_action";
    INSERT_ATTEMPT = "insert_attempt";
    INSERT_EDGE = "insert_edge";
    INSERT_ENVIRONMENT = "insert_environment";
    INSERT_EVALUATION = "insert_evaluation";
    INSERT_EVENT = "insert_event";
    INSERT_EXEC = "insert_exec";
    INSERT_GROUP = "insert_group";
    INSERT_LEASE = "insert_lease";
    INSERT_MERGE_PARENT = "insert_merge_parent";
    INSERT_NODE = "insert_node";
    INSERT_POLICY = "insert_policy";
    INSERT_POSITION = "insert_position";
    INSERT_REQUEST = "insert_request";
    INSERT_ROLLOUT = "insert_rollout";
    INSERT_ROOT = "insert_root";
    INSERT_SEARCH = "insert_search";
    INSERT_STATE = "insert_state";
    INSERT_STORE = "insert_store";
    INSERT_TAG = "insert_tag";
    INSERT_TRANSPOSITION = "insert_transposition";
    KEPT_ATTEMPTS_OF_NODE = "kept_attempts_of_node";
    LAPSED_ROLLOUTS = "lapsed_rollouts";
    LAST_EVENT = "last_event";
    LAST_POSITION = "last_position";
    LEASE_BY_ID = "lease_by_id";
    LEASES_OF_ATTEMPT = "leases_of_attempt";
    LEASES_OF_NODE = "leases_of_node";
    LINEAGE_OF_NODE = "lineage_of_node";
    LINK_EDGE = "link_edge";
    LIVE_ATTEMPTS = "live_attempts";
    LIVE_COUNT = "live_count";
    LIVE_ENVIRONMENTS = "live_environments";
    LIVE_IN_GROUP = "live_in_group";
    LIVE_ROOTS = "live_roots";
    MERGE_PARENTS = "merge_parents";
    MOVE_CANONICAL = "move_canonical";
    MOVE_ROLLOUT = "move_rollout";
    NAMING_ENVIRONMENTS = "naming_environments";
    NODE_BY_ID = "node_by_id";
    NODE_OF_TAG = "node_of_tag";
    NODES_OF_GROUP = "nodes_of_group";
    NODES_OF_ROLLOUTS = "nodes_of_rollouts";
    NODES_OF_ROOT = "nodes_of_root";
    OPEN_ATTEMPT_OF_DRAFT = "open_attempt_of_draft";
    OPEN_ATTEMPT_OF_NODE = "open_attempt_of_node";
    ORDER_OF_POSITION = "order_of_position";
    PINS_OF_ROOT = "pins_of_root";
    POLICY_OF_GROUP = "policy_of_group";
    POSITION_AT_PLACE = "position_at_place";
    POSITION_BY_NUMBER = "position_by_number";
    POSITION_OF_NODE = "position_of_node";
    POSITION_WITH_KEY = "position_with_key";
    POSITIONS_FROM = "positions_from";
    PRUNE_EDGE = "prune_edge";
    PRUNE_NODE = "prune_node";
    PRUNE_POSITION = "prune_position";
    QUEUE = "queue";
    QUEUE_BY_GROUP = "queue_by_group";
    QUEUED_ATTEMPTS = "queued_attempts";
    QUEUED_IDS = "queued_ids";
    QUEUED_IN_GROUP = "queued_in_group";
    QUEUED_OF_GROUP = "queued_of_group";
    RAISE_POSITION = "raise_position";
    REQUEST_BY_KEY = "request_by_key";
    ROLLOUT_BY_ID = "rollout_by_id";
    ROLLOUT_OF_EVALUATION = "rollout_of_evaluation";
    ROLLOUTS_FROM = "rollouts_from";
    ROLLOUTS_NEEDING_NODE = "rollouts_needing_node";
    ROOT_KNOWN = "root_known";
    RUNNING_EXECS = "running_execs";
    SEARCH_BY_ID = "search_by_id";
    SEARCH_BY_NUMBER = "search_by_number";
    SEARCHES_NEEDING_NODE = "searches_needing_node";
    SEARCHES_OF_GROUP = "searches_of_group";
    SET_SEARCH_ROOT = "set_search_root";
    STATE_KNOWN = "state_known";
    STATS_OF_EDGES = "stats_of_edges";
    STATS_OF_POSITION = "stats_of_position";
    STORE_ID = "store_id";
    TAGS_OF_NODE = "tags_of_node";
    UPDATE_ATTEMPT = "update_attempt";
    UPDATE_EDGE_CHILD = "update_edge_child";
    UPDATE_EXEC = "update_exec";
    UPDATE_LEASE = "update_lease";
    UPDATE_NODE = "update_node";
    UPDATE_POSITION = "update_position";
    UPDATE_POSITION_STATS = "update_position_stats";
    UPDATE_SEARCH = "update_search";
    VISIT_EDGE = "visit_edge";
    VOID_ROLLOUT = "void_rollout";
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
