//! Questions to the loop. A question is an event: the loop answers it between two others, so no other task borrows the
//! agent.

use core::any::Any;

use smol::channel::{Sender, bounded};

use super::{
    core::{Agent, AgentEvent, AgentQuestion, SourceDelivery, SourceNews},
    node_resources::{NodeResources, PodsView, ResourceNews},
    views::{DeliveryResult, LoopEnded},
};

/// Part of a question that reads the agent and makes the answer.
type AgentLookup = Box<dyn FnOnce(&Agent) -> Box<dyn Any>>;

/// Handle for questions to the loop. Each question costs a turn of the loop: ask only if the answer is wanted.
#[derive(Clone)]
pub(crate) struct AgentHandle {
    events: Sender<AgentEvent>,
}

impl AgentHandle {
    /// Makes the handle; the reader of `events` answers.
    pub(super) const fn new(events: Sender<AgentEvent>) -> Self {
        Self { events }
    }

    /// Asks the loop, and returns its answer. The answer never comes once the loop has ended: the agent ends then, too.
    pub(super) async fn ask_agent<T: 'static>(
        &self,
        look: impl FnOnce(&Agent) -> T + 'static,
    ) -> T {
        let look: AgentLookup = Box::new(|agent| Box::new(look(agent)));
        let answer = self.fetch_answer(look).await;
        *answer.downcast().expect("it is what was asked for")
    }

    /// Asks a question of any kind. Kept apart from [`AgentHandle::ask_agent`] so that it is in the program once, and
    /// not once for each type of answer.
    async fn fetch_answer(&self, look: AgentLookup) -> Box<dyn Any> {
        let (answer, answered) = bounded(1);
        let question: AgentQuestion = Box::new(move |agent| {
            // The asker may be gone.
            let _ = answer.try_send(look(agent));
        });
        self.send_event(AgentEvent::Ask(question)).await;
        match answered.recv().await {
            Ok(answer) => answer,
            Err(_) => core::future::pending().await,
        }
    }

    /// Hands an event to the loop. The event is lost once the loop has ended: the agent ends then, too.
    pub(super) async fn send_event(&self, event: AgentEvent) {
        let _ = self.events.send(event).await;
    }

    /// Asks the loop's half of extended resources, if it is a `T`.
    pub(crate) async fn ask_resources<T: NodeResources, R: 'static>(
        &self,
        look: impl FnOnce(&T, &PodsView<'_>) -> R + 'static,
    ) -> Option<R> {
        self.ask_agent(move |agent| agent.ask_resources(look)).await
    }

    /// Hands news of extended resources to the loop.
    pub(crate) async fn send_resource_news(&self, news: ResourceNews) -> Result<(), LoopEnded> {
        let told = self.events.send(AgentEvent::Resources(news)).await;
        told.map_err(|_| LoopEnded)
    }

    /// Hands news of a source to the loop; returns when the loop has acted upon them.
    pub(super) async fn deliver_source_news(
        &self,
        news: SourceNews,
    ) -> Result<DeliveryResult, LoopEnded> {
        let (answer, taken) = bounded(1);
        let delivery = SourceDelivery { news, answer };
        let told = self.events.send(AgentEvent::Delivered(delivery)).await;
        told.map_err(|_| LoopEnded)?;
        taken.recv().await.map_err(|_| LoopEnded)
    }
}
