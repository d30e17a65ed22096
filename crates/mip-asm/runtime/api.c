/* What programs may call that want more than a profile that is always there. Linked only if it is called. */

#define HIDDEN __attribute__((visibility("hidden")))
typedef unsigned char u8;
typedef unsigned int u32;

#if defined(__APPLE__)
extern u8 start_of_section[] __asm("section$start$__DATA$__llvm_mipraw");
extern u8 end_of_section[] __asm("section$end$__DATA$__llvm_mipraw");
#define START start_of_section
#define END end_of_section
#define COUNTERS_END END
#else
extern u8 __llvm_mip_start[] __attribute__((weak)) HIDDEN;
extern u8 __llvm_mip_slots[] HIDDEN;
extern u8 __llvm_mip_end[] HIDDEN;
#define START __llvm_mip_start
#define END __llvm_mip_end
#define COUNTERS_END __llvm_mip_slots
#endif
extern u32 __llvm_mip_order __attribute__((weak)) HIDDEN;
extern int close(int);

HIDDEN long __llvm_mip_write(const char *path);
HIDDEN void __llvm_mip_name(char *to);

/* Where the counters of this program or library are, header first. */
HIDDEN u8 *__llvm_mip_profile_begin(void) { return START; }
HIDDEN u8 *__llvm_mip_profile_end(void) { return END; }

/* Writes a copy of the counters. 0, or -1 if that failed. */
HIDDEN int __llvm_dump_mip_profile_with_filename(const char *path) {
  long file = __llvm_mip_profile_begin() ? __llvm_mip_write(path) : -1;
  if (file < 0) return -1;
  close((int)file);
  return 0;
}

/* The same, to the name in the environment. With the automatic profile there is nothing to do: the file is the memory. */
HIDDEN void __llvm_dump_mip_profile(void) {
#if defined(MIP_MANUAL)
  char path[1024];
  __llvm_mip_name(path);
  __llvm_dump_mip_profile_with_filename(path);
#endif
}

/* Forgets what has been counted. */
HIDDEN void __llvm_mip_profile_reset(void) {
  u8 *counter = START;
  u8 fill;
  if (!counter) return;
  fill = START[8] & 0x20 ? 0 : 0xff;
  for (counter += 32; counter < COUNTERS_END; counter++) *(volatile u8 *)counter = fill;
  for (; counter < END; counter++) *(volatile u8 *)counter = 0;
  if (&__llvm_mip_order) __llvm_mip_order = 0;
}
