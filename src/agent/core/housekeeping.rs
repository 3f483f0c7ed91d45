//! Housekeeping: what no event drives. Orphans are ended, what is wanted and missing is created, what nobody owns is
//! removed. The rules are `logic::housekeeping`'s (CLEAN-01 to CLEAN-13); it runs every two seconds once all sources are
//! ready.

use std::collections::BTreeSet;

use super::{
    Agent, AgentEffect,
    chores::{HousekeepingChores, PodRemains, SEARCH_INTERVAL},
};
use crate::{
    api::{MonoTime, PodUid, order::GatherExt as _},
    logic::{
        housekeeping::{HousekeepingPass, HousekeepingPod, may_run_housekeeping},
        pod_worker::PodUpdate,
        runtime_cache::RunningPod,
    },
};

/// Progress of housekeeping.
#[derive(Default)]
pub(super) struct HousekeepingProgress {
    /// Chores of an earlier tick are under way.
    pub(super) cleaning: bool,
    /// Directories and cgroups are being looked through.
    searching: bool,
    /// Instant of the next search of disk and cgroups; at once after anything that may leave remains there.
    pub(super) search_due: MonoTime,
}

/// Findings of one round.
#[derive(Default)]
struct HousekeepingFindings {
    chores: HousekeepingChores,
    /// Pods to create (again), which the table does not hold, and whether their last status must go first.
    create: Vec<(PodUid, bool)>,
}

impl Agent {
    pub(super) fn on_housekeeping(&mut self, now: MonoTime) {
        // Others may have left by now.
        self.decide_resizes("periodic_retry", now);
        let was_known = self.pods.worker_table().is_synced();
        let HousekeepingFindings { chores, create } = self.decide_housekeeping(None, now);
        if !was_known && self.pods.worker_table().is_synced() {
            // Of pods without a worker it is certain from now on that nothing runs.
            self.announce_pod_change();
        }
        for (uid, drop_status) in &create {
            self.create_again(uid, *drop_status);
        }
        self.hand_out_chores(chores);
        let view = &self.view;
        let could =
            self.sources.are_ready() && view.may_run_pods(now) && view.running_pods(now).is_some();
        if could && !self.rounds.cleaning && !self.rounds.searching && now >= self.rounds.search_due
        {
            self.rounds.search_due = now + SEARCH_INTERVAL;
            self.rounds.searching = true;
            self.effects.push_back(AgentEffect::Search);
        }
    }

    /// Listed before the configuration is looked at: a pod that came meanwhile is no orphan.
    pub(super) fn on_searched(&mut self, found: &PodRemains, now: MonoTime) {
        self.rounds.searching = false;
        if self.rounds.cleaning {
            self.rounds.search_due = MonoTime(0);
            return;
        }
        let round = self.decide_housekeeping(Some(found), now);
        self.hand_out_chores(round.chores);
    }

    /// Hands out the chores. Slow ones hold up neither orphans nor new pods: the next round finds again what is left.
    fn hand_out_chores(&mut self, chores: HousekeepingChores) {
        if !self.rounds.cleaning && !chores.is_empty() {
            self.rounds.cleaning = true;
            self.effects
                .push_back(AgentEffect::Housekeeping(Box::new(chores)));
        }
    }

    /// The deciding half: looks at the table, the configuration and the runtime, changes only workers. With what was `found`, it
    /// says what of that is to be removed, and nothing else.
    fn decide_housekeeping(
        &mut self,
        found: Option<&PodRemains>,
        now: MonoTime,
    ) -> HousekeepingFindings {
        // Before the runtime was listed, pods that are configured wait for that.
        let may = may_run_housekeeping(self.sources.are_ready()) && self.view.was_listed();
        if !may || !self.view.may_run_pods(now) {
            return HousekeepingFindings::default();
        }
        let configured = self.pods.configured_uids();
        let pods: Vec<HousekeepingPod<'_>> = configured
            .iter()
            .filter_map(|uid| self.pods.housekeeping_facts(uid))
            .collect();
        let known = self.pods.sync_known_workers();
        let running = self.view.running_pods(now);
        let mirrors = self.owners.cluster.as_ref().map(|c| c.mirror_uids());
        let mirrors = mirrors.unwrap_or_default();
        let pass = HousekeepingPass {
            config: &pods,
            mirrors: &mirrors,
            known: &known,
            running: running.as_deref().unwrap_or_default(),
        };
        self.pods.set_gauges(pass.count_pods());
        self.owners
            .probes
            .retain_workers(|uid| pass.keeps_probes(uid), now);
        // Who comes back under the same UID must not find it, so it goes with the worker.
        self.pods
            .drop_stale_facts(|uid| pass.keeps_status(uid), |uid| pass.has_worker(uid));
        // An old list is as good as none (CLEAN-02).
        if running.is_none() {
            return HousekeepingFindings::default();
        }
        let asked = self.pods.active_requests();
        let is_stale = self.asked.pod_cgroups.are_tiers_stale(asked);
        let mut chores = HousekeepingChores {
            tiers: is_stale.then_some(asked),
            ..HousekeepingChores::default()
        };
        let mut create = Vec::new();
        self.release_resources(now);
        let restarts = found.is_none().then(|| pass.pods_to_restart());
        for restart in restarts.into_iter().flatten() {
            if self.waits_for_resource(restart.uid, now) || self.waits_for_verdict(restart.uid) {
                continue;
            }
            if !restart.ended {
                self.pods
                    .change_totals(|totals| totals.count_restart(restart.is_static));
            }
            create.push((restart.uid.clone(), restart.drop_status));
        }
        for orphan in pass.runtime_orphans() {
            if self.is_unread(&orphan.uid) {
                continue;
            }
            self.end_runtime_orphan(orphan, now);
        }
        // A pod whose worker still ends it is not forgotten: its last step takes its volumes down.
        let workless = |uid: &PodUid| {
            known.binary_search_by(|k| k.uid.cmp(uid)).is_err()
                && !self.pods.is_arriving(uid)
                && !self.is_unread(uid)
        };
        let (dirs, groups) = found.map_or_else(Default::default, |f| (&*f.dirs, &*f.groups));
        let mut forgotten: BTreeSet<PodUid> = dirs
            .iter()
            .filter(|uid| pass.is_orphan_directory(uid) && workless(uid))
            .cloned()
            .gather_items();
        let listed = self.view.pod_uids().into_iter();
        forgotten.extend(listed.filter(|uid| pass.is_orphan_directory(uid) && workless(uid)));
        for (uid, path) in groups {
            if self.is_unread(uid) {
                continue;
            }
            let volumes = dirs.contains(uid) && !forgotten.contains(uid);
            if let Some(action) = pass.cgroup_action(uid, volumes && !self.pods.is_configured(uid))
            {
                chores.cgroups.push((uid.clone(), path.clone(), action));
            }
        }
        chores.forgotten = forgotten.into_iter().collect();
        HousekeepingFindings { chores, create }
    }

    /// Kills what runs and nobody knows: expected only right after a start (CLEAN-11).
    fn end_runtime_orphan(&mut self, pod: &RunningPod, now: MonoTime) {
        log::info!(
            "pod={}/{} uid={} runs, but no source has it: it is stopped",
            pod.namespace,
            pod.name,
            pod.uid
        );
        self.pods
            .change_totals(|totals| totals.count_runtime_orphan());
        let update = PodUpdate::runtime_only(&pod.uid, &pod.name, &pod.namespace);
        if let Err(e) = self.pods.update_worker(update, now) {
            self.tools.complaints.complain(&format!(
                "pod={}/{} cannot be ended: {e}",
                pod.namespace, pod.name
            ));
        }
    }
}
