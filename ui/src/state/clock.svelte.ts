/**
 * The current time for texts like "5 minutes ago", updated twice a minute.
 */

class Clock {
  now = $state.raw(new Date());

  constructor() {
    setInterval(() => (this.now = new Date()), 30_000);
  }
}

export const clock = new Clock();
