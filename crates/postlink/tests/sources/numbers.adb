--  Ada with a loop, a rare branch, checks and an exception.
with Ada.Text_IO;

procedure Numbers is
   type Vector is array (1 .. 64) of Natural;
   Values : Vector;
   State  : Natural := 12_345;
   Sum    : Natural := 0;

   procedure Collect (From : Vector; Sum : in out Natural) is
      pragma No_Inline (Collect);
   begin
      for Value of From loop
         if Value mod 97 = 0 then
            Sum := Sum / 2 + Value;
         elsif Value > 65_000 then
            raise Constraint_Error;
         else
            Sum := (Sum + Value) mod 1_000_003;
         end if;
      end loop;
   exception
      when Constraint_Error =>
         Sum := Sum / 3;
   end Collect;
begin
   for Round in 1 .. 500 loop
      for I in Values'Range loop
         State := (State * 75 + 74) mod 65_537;
         Values (I) := State;
      end loop;
      Collect (Values, Sum);
   end loop;
   Ada.Text_IO.Put_Line (Natural'Image (Sum));
end Numbers;
