//! Complains about identifiers that were replaced by standard names. Checks code, not prose.

use super::{Complaint, source::Source};

/// Retired identifiers and their replacements, for all code.
const RETIRED: [(&str, &str); 87] = [
    ("Answer", "Response"),
    ("Begun", "TaskHandle"),
    ("CROWD_MAX", "OVER_LIMIT_MAX"),
    ("CROWD_MIN", "OVER_LIMIT_MIN"),
    ("Crew", "WorkerSet or ThreadPool"),
    ("Doze", "Parker"),
    ("Figures", "Metrics or Results"),
    ("Floors", "Layers"),
    ("Inlet", "EngineHandler"),
    ("Late", "TimedOut"),
    ("ListingTurn", "Admission"),
    ("Lodged", "SlotTask"),
    ("Moment", "CacheContext"),
    ("Notes", "FieldScan"),
    ("OwnUse", "ProcessUse"),
    ("Passed", "Transfer"),
    ("Reach", "Target"),
    ("Seat", "WorkerSlot"),
    ("Shield", "PanicGuard"),
    ("Shortage", "ReducedDefaults"),
    ("Spares", "RequestPool"),
    ("Spread", "ListenMode or Histogram"),
    ("Stage", "TaskState or JobState"),
    ("Standby", "TaskSlot"),
    ("Stripes", "KeyLocks"),
    ("admin_beside", "reserve_admin_paths"),
    ("adopt", "resume_connection"),
    ("answer", "response"),
    ("answer_all", "respond_all"),
    ("answers", "responses"),
    ("begin_answer", "begin_response"),
    ("bind_patiently", "bind_with_retries"),
    ("break_late", "body_timeout_error"),
    ("bump", "advance_generation"),
    ("by_hand", "manual"),
    ("cache_fresh_ms", "cache_max_age_ms"),
    ("crew", "worker_set or thread_pool"),
    ("crowd", "over_limit"),
    ("crowd_max", "over_limit_max"),
    ("cut_everywhere", "cut_power_at_every_operation"),
    ("dearer", "more_expensive"),
    ("decode_any", "percent_decode"),
    ("doze", "parker"),
    ("encode_again", "encode_invalid"),
    ("ensure_patiently", "create_and_sync_with_retries"),
    ("figure", "value or metric"),
    ("figures", "metrics, results or stats"),
    ("floors", "layers"),
    ("given_back", "returned"),
    ("hand_over_to", "migrate_to"),
    ("inlet", "event_handler"),
    ("is_settled", "has_reliable_version"),
    ("keep_while_made", "keep_until_sent"),
    ("last_look", "final_poll"),
    ("look_around", "rebalance_tick"),
    ("looks_first", "has_condition"),
    ("make_quiet", "begin_migration"),
    ("member_of", "parse_member"),
    ("nowhere", "discard_buffer"),
    ("of_any", "from_open_file"),
    ("of_read", "from_lookup"),
    ("of_write", "from_change"),
    ("own_cores", "restore_affinity"),
    ("relieve", "reclaim_memory"),
    ("restricted", "with_sandbox"),
    ("scan_member", "add_field"),
    ("scarce_block", "take_last_block"),
    ("seats", "slots"),
    ("send_away", "finish_migration"),
    ("serve_for", "accept_for_blocked"),
    ("settle", "a verb that says what is done"),
    ("shield", "panic_guard"),
    ("sort_out", "wait_and_split"),
    ("spares", "request_pool"),
    ("standby", "task_slot"),
    ("stay_to_end", "cancel_migration"),
    ("step_back", "lower_priority"),
    ("strand", "run_without_thread"),
    ("survive", "recover_from_panic"),
    ("to_be_free", "no_replace"),
    ("trickles", "slow_sender"),
    ("try_respond", "try_get"),
    ("turn_away", "reject_over_limit"),
    ("turn_body_away", "shed_body"),
    ("turned", "a name for the result"),
    ("turns", "polls or iterations"),
    ("welcome", "open_connection"),
];

pub(super) fn check(file: &Source, found: &mut Vec<Complaint>) {
    for token in file.tokens() {
        let retired = RETIRED.iter().find(|(old, _)| *old == token.text);
        if let Some((old, new)) = retired {
            let message = format!("the identifier `{old}` is retired: use {new}");
            found.push(Complaint::new(&file.path, token.line, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_identifiers_are_found_in_code_only() {
        let text = "fn f() {\n    // The crew.\n    let crew = \"crew\";\n}\n";
        let mut found = Vec::new();
        check(
            &Source::new("crates/onrush/src/x.rs".to_owned(), text.to_owned()),
            &mut found,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3);
        assert!(found[0].message.contains("worker_set"));
    }

    #[test]
    fn the_list_is_sorted_and_names_each_word_once() {
        assert!(RETIRED.is_sorted_by(|a, b| a.0 < b.0));
    }
}
