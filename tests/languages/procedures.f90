! Procedure pointers, internal procedures as arguments (trampolines on the stack), type-bound procedures.
module shapes
  implicit none
  type, abstract :: shape
    integer :: side = 1
  contains
    procedure(measure), deferred :: area
  end type
  abstract interface
    integer function measure(self)
      import :: shape
      class(shape), intent(in) :: self
    end function
    integer function mapping(x)
      integer, intent(in) :: x
    end function
  end interface
  type, extends(shape) :: square
  contains
    procedure :: area => square_area
  end type
  type, extends(shape) :: cube
  contains
    procedure :: area => cube_area
  end type
contains
  integer function square_area(self)
    class(square), intent(in) :: self
    square_area = self%side * self%side
  end function
  integer function cube_area(self)
    class(cube), intent(in) :: self
    cube_area = 6 * self%side * self%side
  end function
  integer function apply(f, n)
    procedure(mapping) :: f
    integer, intent(in) :: n
    integer :: i
    apply = 0
    do i = 1, n
      apply = mod(apply + f(i), 100003)
    end do
  end function
  integer function twice(x)
    integer, intent(in) :: x
    twice = 2 * x
  end function
  integer function cubed(x)
    integer, intent(in) :: x
    cubed = mod(x * x * x, 1009)
  end function
end module

program procedures
  use shapes
  implicit none
  procedure(mapping), pointer :: chosen
  class(shape), allocatable :: s
  integer :: i, total, offset
  total = 0
  do i = 1, 400
    offset = mod(i, 13)
    if (mod(i, 2) == 0) then
      chosen => twice
      allocate (square :: s)
    else
      chosen => cubed
      allocate (cube :: s)
    end if
    s%side = i
    total = mod(total + apply(chosen, 10) + apply(shifted, 5) + s%area(), 1000003)
    if (associated(chosen, twice)) total = total + 1
    deallocate (s)
  end do
  print *, 'total', total
contains
  integer function shifted(x)
    integer, intent(in) :: x
    shifted = x + offset
  end function
end program
