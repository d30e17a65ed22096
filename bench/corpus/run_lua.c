// Runs a Lua program with its arguments: the crate lua-src has lua without its interpreter's main program.
#include <stdio.h>
#include "lua.h"
#include "lauxlib.h"
#include "lualib.h"

int main(int argc, char **argv) {
  lua_State *state = luaL_newstate();
  if (argc < 2 || !state)
    return 2;
  luaL_openlibs(state);
  lua_createtable(state, argc, 0);
  for (int i = 1; i < argc; i++) {
    lua_pushstring(state, argv[i]);
    lua_rawseti(state, -2, i - 1);
  }
  lua_setglobal(state, "arg");
  int failed = luaL_dofile(state, argv[1]);
  if (failed)
    fprintf(stderr, "%s\n", lua_tostring(state, -1));
  lua_close(state);
  return failed != 0;
}
