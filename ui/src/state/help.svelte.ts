/** The sheet of keyboard shortcuts. */
class Help {
  isOpen = $state(false);
}

export const help = new Help();
