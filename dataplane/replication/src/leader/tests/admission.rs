//! Who must have been heard before anything is appended.

use super::*;
use crate::Contacts;

/// Rows: in-sync members, RF, heard of (controller, members) → admitted.
#[test]
fn nothing_is_taken_without_contact() {
    let late = NOW.plus(3_001);
    let no = |heard, needed| Err(NotAdmitted::NoQuorumContact { heard, needed });
    for (in_sync, rf, controller, heard, expected) in [
        (&[ME][..], 1, false, &[][..], Ok(())),
        (&[ME], 2, false, &[], Ok(())),
        (&[ME], 3, false, &[], no(1, 2)),
        (&[ME], 3, true, &[], Ok(())),
        (&[ME, OTHER], 2, false, &[], no(1, 2)),
        (&[ME, OTHER], 2, false, &[THIRD], no(1, 2)),
        (&[ME, OTHER], 2, false, &[OTHER], Ok(())),
        (&[ME, OTHER, THIRD], 3, false, &[THIRD], Ok(())),
        (&[ME, OTHER, THIRD], 3, true, &[], Ok(())),
    ] {
        for by_node in [false, true] {
            let mut leader = leading(Durability::Replicated, in_sync, rf);
            let mut node = Contacts::default();
            for other in heard {
                let mut report = Report {
                    node: *other,
                    epoch: LeaderEpoch(3),
                    incarnation: Incarnation(1),
                    session: SessionTag(1),
                    ends: ends(3, 3),
                };
                report.ends = ends(3, 3);
                if by_node {
                    node.node_heard(*other, late);
                } else {
                    leader.step(late, Event::Reported(report));
                }
            }
            match (controller, by_node) {
                (true, true) => node.controller_heard(late),
                (true, false) => drop(leader.step(late, Event::ControllerHeard)),
                _ => {}
            }
            let found = leader.admit_at(late, Acks::One, &node);
            assert_eq!(found, expected, "{in_sync:?} {rf} {controller} {heard:?}");
        }
    }
}

#[test]
fn what_is_refused_without_time_is_refused_first() {
    let leader = leading(Durability::Replicated, &[ME], 3);
    let refused = leader.admit_at(NOW.plus(99_999), Acks::All, &Contacts::default());
    let expected = NotAdmitted::NotEnoughReplicas {
        in_sync: 1,
        needed: 2,
    };
    assert_eq!(refused, Err(expected));
}

/// A process that was paused between its order to lead and the opening of the log
/// has heard nobody since: the order is not a word of now.
#[test]
fn an_order_to_lead_is_no_word_of_the_controller() {
    let mut leader = leading(Durability::Replicated, &[ME, OTHER], 3);
    let nobody = NotAdmitted::NoQuorumContact {
        heard: 1,
        needed: 2,
    };
    let refused = leader.admit_at(NOW, Acks::One, &Contacts::default());
    assert_eq!(refused, Err(nobody));
    leader.step(NOW, Event::ControllerHeard);
    let admitted = leader.admit_at(NOW, Acks::One, &Contacts::default());
    assert_eq!(admitted, Ok(()));
}
