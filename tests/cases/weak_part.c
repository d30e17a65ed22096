/* Part of weak: the strong definition. */
int overridden(void) { return 2; }
int asks_overridden(void) { return overridden(); }
