/**
 * Whether there are uploads, for the frame of the UI; the queue itself is loaded by the screens that need it.
 */

class Uploading {
  length = $state(0);
}

export const uploads = new Uploading();
