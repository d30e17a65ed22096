! Fortran with a loop, a rare branch, arrays and a derived type.
module numbers
  implicit none
  type pair
    integer :: low, high
  end type
contains
  subroutine collect(values, count, found)
    integer, intent(in) :: values(:), count
    type(pair), intent(inout) :: found
    integer :: i, v
    do i = 1, count
      v = values(i)
      if (mod(v, 97) == 0) then
        found%high = found%high + v / 97
      else if (v < found%low) then
        found%low = v
      else
        found%high = ieor(found%high, v)
      end if
    end do
  end subroutine
end module

program main
  use numbers
  integer :: values(64), round, i, state
  type(pair) :: found
  found = pair(huge(1), 0)
  state = 12345
  do round = 1, 500
    do i = 1, 64
      state = iand(state * 75 + 74, 65535)
      values(i) = state
    end do
    call collect(values, 64, found)
  end do
  print *, found%low, found%high
end program
