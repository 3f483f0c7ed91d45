//! Asking the loop. A question is an event: the loop answers it between two others, and nobody borrows the agent.

use alloc::collections::BTreeSet;
use core::any::Any;

use smol::channel::{Sender, bounded};

use super::{
    core::{Agent, Delivery, Event, Question, SourceNews},
    device_news::{DeviceLoop, News, Sent},
    views::{LoopEnded, Taken},
};
use crate::api::device::Holdings;

/// What a question reads of the agent.
type Look = Box<dyn FnOnce(&Agent) -> Box<dyn Any>>;

/// Whom to ask. Each question costs a turn of the loop: ask when somebody wants to know.
#[derive(Clone)]
pub(super) struct Asker {
    events: Sender<Event>,
}

impl Asker {
    /// Whoever reads `events` answers.
    pub(super) const fn new(events: Sender<Event>) -> Self {
        Self { events }
    }

    /// The answer of the loop. It never comes once the loop has ended: the agent ends then, too.
    pub(super) async fn ask<T: 'static>(&self, look: impl FnOnce(&Agent) -> T + 'static) -> T {
        let look: Look = Box::new(|agent| Box::new(look(agent)));
        let answer = self.answer(look).await;
        *answer.downcast().expect("it is what was asked for")
    }

    /// For all questions, whatever is asked: this is in the program once, and not once for each.
    async fn answer(&self, look: Look) -> Box<dyn Any> {
        let (answer, answered) = bounded(1);
        let question: Question = Box::new(move |agent| {
            // Who asked may have gone.
            let _ = answer.try_send(look(agent));
        });
        self.send(Event::Ask(question)).await;
        match answered.recv().await {
            Ok(answer) => answer,
            Err(_) => core::future::pending().await,
        }
    }

    /// Hands an event to the loop. Nothing comes of it once that has ended: the agent ends then, too.
    pub(super) async fn send(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// Hands what a source says to the loop; comes back when it is acted upon.
    pub(super) async fn deliver(&self, news: SourceNews) -> Result<Taken, LoopEnded> {
        let (answer, taken) = bounded(1);
        let delivery = Delivery { news, answer };
        let told = self.events.send(Event::Delivered(delivery)).await;
        told.map_err(|_| LoopEnded)?;
        taken.recv().await.map_err(|_| LoopEnded)
    }
}

impl DeviceLoop for Asker {
    fn tell(&self, news: News) -> Sent<()> {
        let asker = self.clone();
        Box::pin(async move { asker.send(Event::Plugin(Box::new(news))).await })
    }

    fn spare_resource(&self, known: BTreeSet<Box<str>>) -> Sent<Option<Box<str>>> {
        let asker = self.clone();
        Box::pin(async move { asker.ask(move |agent| agent.spare_resource(&known)).await })
    }

    fn holdings(&self) -> Sent<Holdings> {
        let asker = self.clone();
        Box::pin(async move { asker.ask(Agent::holdings).await })
    }
}
